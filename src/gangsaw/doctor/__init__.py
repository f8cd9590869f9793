"""What is wrong with a launch file, why a run was out of memory, what a checkpoint allows."""
