"""fedray's methods beside the original code of their papers, with the same weights and draws.

    python -m tools.originals --checkout DIR [METHOD ...] [--write]

DIR is a checkout of PFLlib, HtFLlib or FedMGP's repository. For each method a tiny federation runs
in fedray; then the classes of the checkout run with fedray's initial weights, batches, draws and
participants. The table shows the greatest difference of weights after each round, beside that of
the original against itself with weights moved by 1e-7.

federation  the tiny federation, and fedray's run of it
records     the numbers of an original that tests/originals/ holds fedray to
flcore      what PFLlib and HtFLlib have in common
pfllib, htfllib, fedmgp  the methods of each repository
"""
