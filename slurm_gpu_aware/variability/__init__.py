"""From times to what placement uses: PM scores, bins, application classes.

============== ================================================================
scores         PM score = time / median time of a class
ckmeans        exact K-means in one dimension, silhouettes of its clusters
bins           PAL's binning: how many bins, outliers, the score of a bin
gpu_scores     scores and bins of all GPUs of a cluster
outliers       GPUs whose times are far from the median of their model
classes        the class of an application, from its utilisation counters
counters       these counters from Nsight Compute and DCGM
============== ================================================================
"""
