def card(model): return ""
