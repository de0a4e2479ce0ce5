"""Short modules that a script gets in the place of the harness's own: the same names, fewer lines.

They stand where the harness does more than a script needs, such as stacks of dead processes.
"""
