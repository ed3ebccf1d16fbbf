"""Machines that belong to others: jobs for their schedulers, checks of their nodes. Imports without torch and Ray."""
