{% macro read_others(tables, owner) -%}
    {#-
        What a model reads beside raw (a join with a seed, a source of others, a model), and in what state:
        {schema.table: state}. No batch tells of their changes, nor of those of a seed that stands for raw: the
        watermark remembers the states, and another one is a reason to build anew.
    -#}
    {%- set raw = tables | map(attribute="name") | list -%}
    {%- set others = {} -%}
    {%- for node in strandline.read_nodes(model.depends_on.nodes) -%}
        {%- set relation = strandline.relation_of(node) -%}
        {%- set name = strandline.name_of(relation) -%}
        {%- if name not in raw or node.resource_type == "seed" -%}
            {%- do others.update({name: strandline.state_of_other(node, relation, owner)}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(others) }}
{%- endmacro %}


{% macro state_of_other(node, relation, owner) -%}
    {#-
        A seed by its rows and types, for dbt writes it again at each `dbt build`; another table by its Iceberg
        snapshot. none of what cannot tell, of which the user is warned.
    -#}
    {%- set deferred = (node.get("defer_relation") or {}).get("relation_name") -%}
    {%- set read = deferred if deferred and invocation_args_dict.get("defer") and not strandline.exists(relation) else relation -%}
    {%- if node.resource_type == "seed" -%}
        {%- set content = run_query(
            "select count(*), cast(sum(cast(xxhash64(to_json(struct(*))) as decimal(38, 0))) as string) from " ~ read
        ).rows[0] -%}
        {%- set types = adapter.get_columns_in_relation(read) | map(attribute="dtype") | join(",") -%}
        {{ return("rows " ~ content[0] ~ ":" ~ content[1] ~ ":" ~ types) }}
    {%- endif -%}
    {%- set provider = {} -%}
    {%- for row in run_query("describe table extended " ~ read) if row[0] == "Provider" -%}
        {%- do provider.update({"name": row[1] | lower}) -%}
    {%- endfor -%}
    {%- if provider.get("name") == "iceberg" -%}
        {{ return("snapshot " ~ strandline.current_snapshot(read)) }}
    {%- endif -%}
    {%- do exceptions.warn(
        owner ~ ": it reads " ~ relation ~ ", which is no Iceberg table: a change of it is not seen, and rows that no new "
        ~ "batch touches stay as they were. Build with --full-refresh when it changed, or join it in a model that reads "
        ~ this ~ "."
    ) -%}
    {{ return(none) }}
{%- endmacro %}
