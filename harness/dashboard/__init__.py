"""The static site of a history: no server, no framework, nothing to install where it is read.

Data flows one way: ``sql/`` -> ``rows.py`` -> ``site_facts.py`` -> ``pages/`` -> ``templates/``.

=====================  ===========================================================================
to change              look at
=====================  ===========================================================================
a question             ``sql/NAME.sql``, its row in ``rows.py``, who asks it in ``site_facts.py``
a page                 ``pages/NAME_page.py`` and ``templates/NAME.html``; ``publish.py`` calls it,
                       ``page_maker.py`` has the menu
a column of a table    the same two files; the row's class stands in ``pages/NAME_page.py``
the page of a case     what it says in ``case_facts.py``, how in ``templates/case_body.html``, which
                       ``static/case.js`` renders too: ``script_template.py``
what several draw      ``templates/parts.html``: links, outcomes, groups of changes
a picture              its geometry in ``shapes.py``, its SVG in ``plot.html``, ``strip.html``
a verdict              ``changes.py``; the rules themselves stand in ``harness/verdicts``
when something began   ``began.py``: the run, and what changed with it
an address             ``harness/render/page_names.py``
dates, units, colours  ``units.py``, ``static/site.css``
sorting and filtering  ``static/tables.js``
how files are written  ``site.py``
=====================  ===========================================================================
"""
