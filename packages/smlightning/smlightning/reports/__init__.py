"""Log lines, the progress of training, curves and tables.

- `log`: lines and warnings of a run: ``format_metrics``, ``quiet``, ``print_result``. It imports no
  torch, for the launcher.
- `lines`: TensorBoard's logger, which prints and keeps metrics: ``LogLines``, ``MetricHistory``.
- `progress`: loss, learning rate and speed of each interval: ``ProgressReport``.
- `curves`: pictures and tables: ``write_curves``, ``save_figure``, ``save_matrix``.
- `profiler`: for runs without a profiler: ``NoProfiler``.
"""
