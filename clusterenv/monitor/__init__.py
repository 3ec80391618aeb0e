"""The commands that look after runs from outside: `clusterenv status`, `logs` and `stop`."""
