"""The process in which the ranks of a job meet: it runs the programs that span several of them."""
