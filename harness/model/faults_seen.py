"""The properties in which a report gives an area's share of planted faults that tests saw.

An underscore and the name of an operator after UNSEEN stand for the faults of that operator alone.
"""

PERCENT, SEEN, UNSEEN = "faults_seen_percent", "faults_seen", "faults_not_seen"
