"""Your machine plays the cluster: the real SageMaker toolkit on several hosts. `python -m rehearsal --help`"""
