"""`python -m postroad` is the same as `postroad`."""

from postroad.ops import main

if __name__ == "__main__":
    main()
