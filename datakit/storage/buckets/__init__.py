"""Lists the objects of buckets in S3 and Google Cloud Storage completely, and reads them from any byte on."""
