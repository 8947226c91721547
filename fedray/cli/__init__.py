"""The command `fedray`: a module for each of its words, and what they show.

frame.py          the command itself: finds the word, the help, completion; words.py lists the words
run.py            one experiment; several.py several seeds of it; progress.py shows where it is
ls.py, show.py    what can be chosen by name, and what is known of a name
listing.py        what both list; catalogue.py is what registries say, heads.py what files do
kept.py           keeps what takes the import of PyTorch to know; written.py is what packages bring
cp.py, new.py     files to edit, from what is shipped and from templates/
cost.py           what a method keeps, trains and sends
data.py           your own images, before a run reads them
predict.py        a run's models on images
doctor.py         what works here
papers.py         the papers' tables and figures as commands; resolving.py checks commands
docs.py           writes the pages that follow from the code, by *_page.py and method_pages.py
"""
