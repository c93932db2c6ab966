"""Avoids one `chmod` subprocess for each local file and folder that Hadoop creates.

Each subprocess takes 3 ms, and a small batch starts about twenty, because PySpark does not include
Hadoop's native library. The loader therefore compiles (with Janino) a subclass of Hadoop's local
file system that sets a file's mode in Java. It compiles the class only after a few batches, because
in shorter runs, compiling takes more time than it saves. Object stores and HDFS are not affected.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_BATCHES = 3
_NAME = "strandline.LocalFiles"
_HADOOP_CLASS = "org.apache.hadoop.fs.RawLocalFileSystem"
_WRAPPER_CLASS = "org.apache.hadoop.fs.FilterFileSystem"
# Hadoop's `chmod` is still used for modes with setuid, setgid or sticky bits, which Java would
# drop, and on file systems without POSIX permissions.
_SOURCE = """
package strandline;

import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(Path path, FsPermission mode) throws java.io.IOException {
        try {
            java.nio.file.Path file = pathToFile(path).toPath();
            int now = ((Integer) Files.getAttribute(file, "unix:mode")).intValue();
            if ((now & 07000) == 0 && !mode.getStickyBit()) {
                Files.setPosixFilePermissions(
                    file, PosixFilePermissions.fromString(mode.toString()));
                return;
            }
        } catch (UnsupportedOperationException without) {
        } catch (IllegalArgumentException without) {
        }
        super.setPermission(path, mode);
    }
}
"""

_lock = threading.Lock()
_batches = 0


def count_written_batch(spark: SparkSession) -> None:
    """Counts a written batch. After a few of them, replaces Hadoop's local file system."""
    global _batches
    with _lock:
        _batches += 1
        if _batches != _BATCHES:
            return
    try:
        _replace_file_system(spark)
    except Py4JError as error:
        logging.getLogger(__name__).debug("Hadoop continues to start chmod: %s", error)


def _replace_file_system(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    configured = context._jsc.hadoopConfiguration()
    local = jvm.java.net.URI.create("file:///")
    # All code in the JVM shares this cached object.
    files = jvm.org.apache.hadoop.fs.FileSystem.get(local, configured)
    if files.getRawFileSystem().getClass().getName() != _HADOOP_CLASS:
        return  # the profile configures a different implementation
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_SOURCE)
    types = context._gateway.new_array(jvm.java.lang.Class, 0)
    values = context._gateway.new_array(jvm.java.lang.Object, 0)
    file_system_class = compiler.getClassLoader().loadClass(_NAME)
    file_system = file_system_class.getDeclaredConstructor(types).newInstance(values)
    file_system.initialize(local, configured)
    field = jvm.java.lang.Class.forName(_WRAPPER_CLASS).getDeclaredField("fs")
    field.setAccessible(True)
    field.set(files, file_system)
