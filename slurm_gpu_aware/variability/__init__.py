"""From timings to what placement uses: PM scores, bins, application classes.

``scores``
    PM score = time / median time of a class.
``kmeans``
    Exact K-means in one dimension, and its silhouettes.
``bins``
    PAL's binning: how many bins, outliers, the score of a bin.
``classes``
    Which class an application belongs to, from its utilisation counters.
``counters``
    Those counters from Nsight Compute and DCGM.
"""
