"""Tests of ClusterEnv."""
