"""PM scores, bins and application classes from measured times.

============== ================================================================
scores         PM scores: time / median time of a class
ckmeans        exact one-dimensional K-means, silhouettes of its clusters
bins           PAL's binning: number of bins, outliers, the score of a bin
gpu_scores     scores and bins of all GPUs of a cluster
outliers       GPUs with times far from the median of their model
classes        application classes from utilisation counters
counters       utilisation counters from Nsight Compute and DCGM
============== ================================================================
"""
