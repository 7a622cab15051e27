"""A server in virtual time: the mover, the waiting room and the policies that serve, over an imagined machine."""
