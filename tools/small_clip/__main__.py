"""`python -m tools.small_clip --out DIR [key=value ...]`."""

from tools.small_clip.command import main

if __name__ == "__main__":
    raise SystemExit(main())
