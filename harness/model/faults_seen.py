"""The properties in which a report gives an area's share of planted faults that tests saw.

An underscore and the name of an operator after UNSEEN stand for the faults of that operator alone.
NOT_EXECUTED, which is part of UNSEEN, is there if the faults are slips in a module's Python.
"""

PERCENT, SEEN, UNSEEN = "faults_seen_percent", "faults_seen", "faults_not_seen"
NOT_EXECUTED = "faults_not_executed"
