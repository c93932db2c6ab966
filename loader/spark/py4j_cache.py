"""Caches Py4J's lookups of JVM packages, classes and static methods.

For each use of `jvm.org.apache.spark.sql.functions`, Py4J resolves every part of the name in the
JVM. Java searches all jars for a class `org` before it reports a package. Without the cache, these
lookups are a fifth of the JVM's work in a small sync. Py4J also resolves static methods and Scala
objects at each call.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView


def cache_lookups(gateway: Any) -> None:
    """Makes a gateway resolve each package, class, static method and Scala object only once.

    Args:
        gateway: PySpark's gateway, after PySpark's imports and before a session is created.
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
        found = super().__getattr__(name)
        # Caches static methods and the instances of Scala objects. Other static fields may change.
        if isinstance(found, JavaMember) or name == "MODULE$":
            self.__dict__[name] = found
        return found


def _cache_attribute(owner: Any, name: str, found: Any) -> Any:
    """Caches a resolved name as an attribute of its owner.

    Py4J treats every unknown name as a package. Only names in lower case are cached as packages,
    because another name can become a class later (`java_import`).
    """
    if isinstance(found, JavaPackage):
        if not name.islower():
            return found
        found = _Package(found._fqn, found._gateway_client, found._jvm_id)
    elif isinstance(found, JavaClass):
        found = _Class(found._fqn, found._gateway_client)
    owner.__dict__[name] = found
    return found
