"""Random histories, played to the reference store and to a real one."""
