"""Finding the fastest schedule of a call on a GPU, and keeping it for later calls."""
