"""`python -m fedray.pretrain [CONFIG] [key=value ...]`."""

from fedray.pretrain.command import main

if __name__ == "__main__":
    raise SystemExit(main())
