def card(model):
    return ""
