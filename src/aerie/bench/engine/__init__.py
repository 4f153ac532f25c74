"""`aerie bench engine`: policies beside each other on a CPU, and what the planner plans from."""
