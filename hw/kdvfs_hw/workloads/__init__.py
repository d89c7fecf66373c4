"""Things that keep a GPU busy: kernels that can be launched one by one, steps, callables, commands."""
