"""What is known of a GPU, and the cost tables and switch costs that follow from it."""
