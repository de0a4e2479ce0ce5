"""A module for each page of the site: ``X_page.py`` fills ``templates/X.html``.

Each has a function ``publish`` that takes what it shows from the facts and writes its pages. The
front page is ``index.html``; ``feed.py`` writes the files for programs.
"""
