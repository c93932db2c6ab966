"""Caches Py4J's lookups of JVM packages, classes and static methods.

Py4J resolves `jvm.org.apache.spark.sql.functions` in the JVM name by name, at every use, and Java
looks for a class called `org` in each jar before it answers that this is a package. That was a
fifth of the JVM's work in a small sync, most of it for PySpark's own calls. It also asks for a
class's static method at each call, and for the instance behind a Scala object.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView


def cache_lookups(gateway: Any) -> None:
    """Makes a gateway ask for each package, class, static method and Scala object only once.

    Args:
        gateway: PySpark's, after it has imported its names and before a session keeps its view.
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
        # a static method, or the one instance of a Scala object; other static fields may change
        if isinstance(found, JavaMember) or name == "MODULE$":
            self.__dict__[name] = found
        return found


def _cache_attribute(owner: Any, name: str, found: Any) -> Any:
    """Resolves a name and keeps the result as an attribute, which Python uses without asking again.

    Py4J treats every unknown name as a package. A name that does not look like a
    package's is not kept, because it may become a class's later (`java_import`).
    """
    if isinstance(found, JavaPackage):
        if not name.islower():
            return found
        found = _Package(found._fqn, found._gateway_client, found._jvm_id)
    elif isinstance(found, JavaClass):
        found = _Class(found._fqn, found._gateway_client)
    owner.__dict__[name] = found
    return found
