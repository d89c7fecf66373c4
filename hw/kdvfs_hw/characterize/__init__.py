"""What a GPU and its driver are like: call costs, counter, switching, and the chip's own clock moves."""
