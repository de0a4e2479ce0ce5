"""``python -m harness.lanes.virtual_tpu.executor DESCRIPTOR`` serves one job to its end."""

import os
import socket
import sys

from harness.lanes.virtual_tpu.executor.server import Server

listening = socket.socket(fileno=int(sys.argv[1]))
Server(listening, os.environ.get("XLA_HARNESS_JOB_TOKEN", "-")).serve()
# Without its clean-up: threads may wait in collectives that will never be met.
os._exit(0)
