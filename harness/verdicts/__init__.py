"""Find what has changed: rules about a history, in SQL, and the comparison of two stacks.

``words`` has every verdict and what it means; ``sql/`` has a statement for each rule, ``rules`` the
views that they read, and ``nightly`` runs them. ``compare`` and ``comparison`` compare two stacks,
``groups`` puts cases of one cause together, ``allow`` has what somebody signed off.
"""
