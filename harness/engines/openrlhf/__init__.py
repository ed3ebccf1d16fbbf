"""Policies on a Ray cluster, trained by OpenRLHF's DeepSpeed actors and sampled by vLLM.

Needs the environment of `make install-openrlhf`. Importing this package imports none of it; its modules do.
"""
