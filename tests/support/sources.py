"""Data written by the real libraries: images, parquet and webdataset shards."""

import io
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import webdataset as wds
from PIL import Image


def picture(colour="red", mode="RGB"):
    return Image.new("RGB", (8, 8), colour).convert(mode)


def png(colour="red", kind="PNG"):
    data = io.BytesIO()
    picture(colour).save(data, kind)
    return data.getvalue()


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def parquet(file, **columns):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file, row_group_size=2)
    return file


def structs(*colours):
    return pa.array([c and {"bytes": png(c), "path": f"{c}.png"} for c in colours], STRUCT)


def written(path, samples, **options):
    """Shards as webdataset's own writer makes them, two samples each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with wds.ShardWriter(str(path / "s-%03d.tar"), maxcount=2, verbose=0, **options) as sink:
            for sample in samples:
                sink.write(sample)
    return path
