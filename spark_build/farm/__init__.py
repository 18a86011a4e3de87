"""A farm: recipes built by dask.distributed workers, results by remote stores."""
