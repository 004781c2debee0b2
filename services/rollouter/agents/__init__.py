"""Agent loops: from a task to the rows that are trained."""
