"""A Hugging Face Hub and plain web servers on this machine, which misbehave on order.

    site.py         an HTTP server made of routes; it logs every request, and applies faults to its answers
    repository.py   repositories with branches, commits and files
    hub_routes.py   the Hub's API for reading: description, tree, resolve
    store_routes.py the store of large files, at another port
    faults.py       what can go wrong with an answer
    hub.py          all of it together: `with hub_server() as hub`

Another kind of request, such as those for uploads, is another route: a function that returns a Reply or None.
"""
