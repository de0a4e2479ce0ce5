-- The last night of each line: a stack on one lane and topology.
SELECT stack, lane, topology, max(night) AS night
FROM recent
GROUP BY stack, lane, topology
