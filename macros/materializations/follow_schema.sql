{% macro follow_schema(target, selected, owner, stored) -%}
    {#-
        Unless the table is built: adds the columns that the model selects and the table lacks (`selected` and
        `stored`, from query_types()), and widens those whose type has grown. Returns the columns whose type changed in any other way: such a
        table is rebuilt. `on_schema_change: fail` and an enforced contract refuse all of this.
    -#}
    {%- set added = [] -%}
    {%- set widened = [] -%}
    {%- set differing = [] -%}
    {%- for name, column in selected.items() -%}
        {%- set before, after = (stored[name].type if name in stored else none), column.type -%}
        {%- if before is none -%}
            {%- do added.append(strandline.quoted(column.name) ~ " " ~ strandline.quoted_type(after)) -%}
        {%- elif before != after and strandline.is_widening(before, after) -%}
            {%- do widened.append(strandline.quoted(column.name) ~ " type " ~ after) -%}
        {%- elif before != after and not strandline.is_widening(after, before) -%}
            {%- do differing.append(column.name) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if config.get("on_schema_change") == "fail" and (added or widened or differing) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT has other columns than " ~ target ~ " (" ~ (added + widened + differing) | join(", ")
            ~ "), and its config says on_schema_change: fail. Select the columns by name, or rebuild with "
            ~ "--full-refresh."
        ) }}
    {%- endif -%}
    {%- if not differing -%}
        {%- if added -%}
            {%- do strandline.run_statement("alter table " ~ target ~ " add columns (" ~ added | join(", ") ~ ")") -%}
        {%- endif -%}
        {%- for change in widened -%}
            {%- do strandline.run_statement("alter table " ~ target ~ " alter column " ~ change) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return(differing) }}
{%- endmacro %}


{% macro followed_columns(stored, selected) -%}
    {#- The names of a table's columns after follow_schema(): those that it had, then those that were added. -#}
    {%- set names = stored.values() | map(attribute="name") | list -%}
    {%- for name, column in selected.items() if name not in stored -%}
        {%- do names.append(column.name) -%}
    {%- endfor -%}
    {{ return(names) }}
{%- endmacro %}


{% macro query_types(sql) -%}
    {#-
        The columns of a SELECT, by their names in lower case: {name, type}, as Iceberg stores the type. Does not
        run the SELECT. DESCRIBE shortens a struct with many fields; typeof() spells it in full.
    -#}
    {%- set types = {} -%}
    {%- set shortened = [] -%}
    {%- for row in run_query("describe query select * from (\n" ~ sql ~ "\n) as versions") -%}
        {%- set twice = row[0] | lower in types -%}
        {%- do types.update({row[0] | lower: {"name": row[0], "type": row[1], "twice": twice}}) -%}
        {%- if "more fields" in row[1] -%}
            {%- do shortened.append(row[0]) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if shortened -%}
        {%- set types_sql -%}
            select
                {%- for name in shortened %}
                typeof(first({{ strandline.quoted(name) }})){{ "," if not loop.last }}
                {%- endfor %}
            from (
                {{ sql }}
            ) as versions
            where false
        {%- endset -%}
        {%- set row = run_query(types_sql).rows[0] -%}
        {%- for name in shortened -%}
            {%- do types[name | lower].update({"type": row[loop.index0]}) -%}
        {%- endfor -%}
    {%- endif -%}
    {%- for column in types.values() -%}
        {%- do column.update({"type": strandline.stored_type(column.type)}) -%}
    {%- endfor -%}
    {{ return(types) }}
{%- endmacro %}


{% macro stored_type(type) -%}
    {#- Iceberg has no integer below int, and no strings of limited length. A colon follows a field's name, not a type. -#}
    {%- set small = modules.re.sub("(^|[<:,])(tinyint|smallint)(?=$|[>,])", "\\1int", type) -%}
    {{ return(modules.re.sub("(^|[<:,])(var)?char\\([0-9]+\\)(?=$|[>,])", "\\1string", small)) }}
{%- endmacro %}


{% macro column_names(relation) -%}
    {{ return(adapter.get_columns_in_relation(relation) | map(attribute="name") | list) }}
{%- endmacro %}


{% macro quoted_type(type) -%}
    {#-
        Spark prints the fields of a struct unquoted, but can only read a name with a dash if it is quoted. A name may
        look like the rest of a type, or like SQL after it: then nobody can tell where it ends.
    -#}
    {%- set named = "([<,])([^<>,:()`]+):" -%}
    {#- Folds the type from within, with @ for each name: what is left of a type is one word. -#}
    {%- set one = "(?:[a-z_]+|decimal\\([0-9]+,[0-9]+\\)|(?:var)?char\\([0-9]+\\))" -%}
    {%- set whole = "struct<(?:@" ~ one ~ "(?:,@" ~ one ~ ")*)?>|array<" ~ one ~ ">|map<" ~ one ~ "," ~ one ~ ">" -%}
    {%- set rest = namespace(type=modules.re.sub(named, "\\1@", type)) -%}
    {%- for _ in range(type.count("<")) -%}
        {%- set rest.type = modules.re.sub(whole, "t", rest.type) -%}
    {%- endfor -%}
    {%- if not modules.re.match(one ~ "\\Z", rest.type) -%}
        {{ exceptions.raise_compiler_error(
            "A field of the type " ~ type ~ " has a name with one of < > , : ( ) `, which Spark prints without quotes, so the "
            ~ "type cannot be written in SQL. Select to_json(…) of the column under another name, or rename the field in the source."
        ) }}
    {%- endif -%}
    {%- set quoted = modules.re.sub(named, "\\1`\\2`:", type) -%}
    {%- do strandline.check_name(quoted) -%}
    {{ return(quoted) }}
{%- endmacro %}


{% macro is_widening(before, after) -%}
    {#- The changes that Iceberg makes in place: int to bigint, float to double, a decimal to a higher precision. -#}
    {%- if [before, after] in [["int", "bigint"], ["float", "double"]] -%}
        {{ return(true) }}
    {%- endif -%}
    {%- set pattern = "^decimal\\(([0-9]+),([0-9]+)\\)$" -%}
    {%- set narrow, wide = modules.re.match(pattern, before), modules.re.match(pattern, after) -%}
    {{ return(
        narrow is not none and wide is not none
        and narrow.group(2) == wide.group(2)
        and narrow.group(1) | int < wide.group(1) | int
    ) }}
{%- endmacro %}
