"""Training prompts and evaluation tasks."""
