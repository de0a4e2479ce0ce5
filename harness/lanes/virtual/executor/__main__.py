"""``python -m harness.lanes.virtual.executor DESCRIPTOR STARTER`` serves one job to its end."""

import os
import resource
import socket
import sys

from harness.lanes.virtual.executor.server import Server

# Of what the rank that started it has open, it needs this one only: a pipe that it kept open would
# have no end.
os.closerange(3, int(sys.argv[1]))
os.closerange(int(sys.argv[1]) + 1, os.sysconf("SC_OPEN_MAX"))
# Each piece of memory that a rank shares needs one.
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
listening = socket.socket(fileno=int(sys.argv[1]))
Server(listening, os.environ.get("XLA_HARNESS_JOB_TOKEN", "-"), int(sys.argv[2])).serve()
# Without its clean-up: threads may wait in collectives that will never be met.
os._exit(0)
