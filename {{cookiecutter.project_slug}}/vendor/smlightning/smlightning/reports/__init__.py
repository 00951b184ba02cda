"""Log lines, the progress of training, curves and tables.

- `log`: lines and warnings of a run: ``format_metrics``, ``quiet``, ``print_result``. It needs no
  torch.
- `history`: a run's metrics in rows: ``MetricHistory``.
- `lines`: the logger that prints them: ``LogLines``.
- `progress`: loss, learning rate and speed of each interval: ``ProgressReport``.
- `curves`: pictures and tables: ``write_curves``, ``save_figure``, ``save_matrix``.
- `mlflow`: a logger where a server is named: ``mlflow_loggers``.
- `profiler`: Lightning's for runs that are not profiled: ``NoProfiler``.
"""
