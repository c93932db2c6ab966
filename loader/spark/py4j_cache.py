"""Caches Py4J's lookups of JVM packages, classes and static methods.

For each use of `jvm.org.apache.spark.sql.functions`, Py4J resolves every part of the name in the
JVM, and Java searches all jars for a class `org` before it reports that `org` is a package. Without
the cache, these lookups are a fifth of the JVM's work in a small sync. Py4J also resolves static
methods and Scala objects on each call.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView


def cache_lookups(gateway: Any) -> None:
    """Makes a gateway resolve each package, class, static method and Scala object only once.

    Args:
        gateway: PySpark's gateway. PySpark must be imported, and no session may exist yet.
    """
    view = gateway.jvm
    gateway.jvm = _View(view._gateway_client, view._jvm_name, id=view._id)


class _View(JVMView):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _cache_attribute(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _cache_attribute(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        resolved = super().__getattr__(name)
        # Static fields other than the instances of Scala objects may change.
        if isinstance(resolved, JavaMember) or name == "MODULE$":
            self.__dict__[name] = resolved
        return resolved


def _cache_attribute(owner: Any, name: str, resolved: Any) -> Any:
    """Caches a resolved name as an attribute of its owner.

    For Py4J, every unknown name is a package. Only lower-case names are cached as packages, because
    other names may become classes later (`java_import`).
    """
    if isinstance(resolved, JavaPackage):
        if not name.islower():
            return resolved
        resolved = _Package(resolved._fqn, resolved._gateway_client, resolved._jvm_id)
    elif isinstance(resolved, JavaClass):
        resolved = _Class(resolved._fqn, resolved._gateway_client)
    owner.__dict__[name] = resolved
    return resolved
