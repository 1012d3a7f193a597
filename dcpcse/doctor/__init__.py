"""`dcpcse doctor`: what is wrong, or odd, in files and folders, before it costs a training."""
