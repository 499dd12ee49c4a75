"""The grids of runs behind the book's tables; `experiments.read_grid` reads them."""
