{% macro _follow_schema(existing, mark, spec, owner) -%}
    {#- Adds new columns of the SELECT to the table, widens columns, and sets the spec's
        `stored_columns`. Returns a reason for a rebuild if a type has changed in another way,
        otherwise none. With `on_schema_change: fail` or an enforced contract, such changes are
        errors. -#}
    {%- set stored = strandline._columns(existing) -%}
    {%- set added = [] -%}
    {%- set widened = [] -%}
    {%- set differing = [] -%}
    {%- for name, column in spec.types.items() -%}
        {%- set before = stored[name].type if name in stored else none -%}
        {%- if before is none -%}
            {%- do added.append(column) -%}
        {%- elif before != column.type and strandline._is_wider(column.type, before) -%}
            {%- do widened.append(column) -%}
        {%- elif before != column.type and not strandline._is_wider(before, column.type)
            and "more fields" not in before ~ column.type -%}
            {%- do differing.append(column) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set changed = (added + widened + differing) | map(attribute="name") | list -%}
    {%- if changed and config.get("on_schema_change") == "fail" -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT has different columns than " ~ existing ~ " ("
            ~ changed | join(", ")
            ~ "), and its config says "
            ~ "on_schema_change: fail. Select the columns by name, or rebuild with --full-refresh."
        ) }}
    {%- endif -%}
    {%- for name in mark.columns if name | lower not in stored -%}
        {{ return("its column " ~ name ~ " was dropped") }}
    {%- endfor -%}
    {#- A rebuild is necessary for a computed column, because older versions may have values in it.
        It is also necessary for a new nested column, because Spark prints its field names unquoted,
        so its type cannot always be written in SQL. -#}
    {%- for column in added + widened if not spec.is_plain or column in added
        and "<" in column.type -%}
        {{ return("its SELECT has a new column or type, " ~ column.name) }}
    {%- endfor -%}
    {%- if differing -%}
        {{ return("the type of " ~ differing | map(attribute="name") | join(", ") ~ " changed") }}
    {%- endif -%}
    {%- if added -%}
        {%- set definitions = [] -%}
        {%- for column in added -%}
            {%- do definitions.append(strandline._quote(column.name) ~ " " ~ column.type) -%}
        {%- endfor -%}
        {%- do strandline._run("alter table " ~ existing ~ " add columns ("
            ~ definitions | join(", ") ~ ")") -%}
    {%- endif -%}
    {%- for column in widened -%}
        {%- do strandline._run(
            "alter table " ~ existing ~ " alter column " ~ strandline._quote(column.name) ~ " type "
            ~ column.type
        ) -%}
    {%- endfor -%}
    {%- do spec.update({
        "stored_columns": stored.values() | map(attribute="name") | list + added | map(
            attribute="name") | list
    }) -%}
    {{ return(none) }}
{%- endmacro %}


{% macro _is_wider(wide, narrow) -%}
    {#- Returns whether Iceberg can widen the type in place. It widens int to bigint, float to
        double, and a decimal to a higher precision. -#}
    {%- if [narrow, wide] in [["int", "bigint"], ["float", "double"]] -%}
        {{ return(true) }}
    {%- elif not (wide.startswith("decimal(") and narrow.startswith("decimal(")) -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set wide_size, wide_scale = wide[8:-1].split(",") -%}
    {%- set narrow_size, narrow_scale = narrow[8:-1].split(",") -%}
    {{ return(wide_scale == narrow_scale and wide_size | int > narrow_size | int) }}
{%- endmacro %}


{% macro _select_types(sql) -%}
    {#- Returns the columns of a SELECT by lower-case name: {name, type}. The types are the types
        that Iceberg stores. Does not run the SELECT. -#}
    {%- set types = {} -%}
    {%- for row in run_query("describe query select * from (\n" ~ sql ~ "\n) as versions") -%}
        {%- do types.update({row[0] | lower: {"name": row[0],
            "type": strandline._stored_type(row[1])}}) -%}
    {%- endfor -%}
    {{ return(types) }}
{%- endmacro %}


{% macro _stored_type(type) -%}
    {#- Iceberg has no integer type smaller than int, and no strings of limited length. -#}
    {%- if type in ("tinyint", "smallint") -%}
        {{ return("int") }}
    {%- elif type.startswith("char(") or type.startswith("varchar(") -%}
        {{ return("string") }}
    {%- endif -%}
    {#- In a nested type, a type is followed by a comma or a bracket, and a field name by a
        colon. -#}
    {{ return(type | replace("tinyint,", "int,") | replace("tinyint>", "int>")
        | replace("smallint,", "int,") | replace("smallint>", "int>")) }}
{%- endmacro %}
