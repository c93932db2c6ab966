{% macro read_others(tables, owner) -%}
    {#-
        What a model reads besides raw (a join with a seed, a source of others, a model), and in what state:
        {schema.table: state}. No batch shows their changes, nor those of a seed that stands in for raw. So the
        watermark stores the states, and a changed one is a reason to rebuild.
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
        A seed's rows and types, because each `dbt build` writes it again; another table's Iceberg snapshot and columns,
        because to rename one makes no snapshot.
        none, with a warning, if changes cannot be detected.
    -#}
    {%- set deferred = (node.get("defer_relation") or {}).get("relation_name") -%}
    {%- set read = deferred if deferred and invocation_args_dict.get("defer") and not strandline.exists(relation) else relation -%}
    {%- if invocation_args_dict.get("defer") and read is not string and not strandline.exists(read) -%}
        {{ return(none) }}
    {%- elif node.resource_type == "seed" -%}
        {%- set types = adapter.get_columns_in_relation(read) | map(attribute="dtype") | join(",") -%}
        {#- JSON tells two columns apart if one of them is null, but cuts times to milliseconds. -#}
        {%- set hash = "xxhash64(to_json(struct(*))" ~ (", *" if "timestamp" in types else "") ~ ")" -%}
        {%- set content = run_query(
            "select count(*), cast(sum(cast(" ~ hash ~ " as decimal(38, 0))) as string) from " ~ read
        ).rows[0] -%}
        {{ return("rows " ~ content[0] ~ ":" ~ content[1] ~ ":" ~ types) }}
    {%- endif -%}
    {%- set columns = [] -%}
    {%- set described = namespace(columns=true, provider=none) -%}
    {%- for row in run_query("describe table extended " ~ read) -%}
        {%- set described.columns = described.columns and row[0] and not row[0].startswith("#") -%}
        {%- if described.columns -%}
            {%- do columns.append([row[0], row[1]]) -%}
        {%- elif row[0] == "Provider" -%}
            {%- set described.provider = row[1] | lower -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if described.provider == "iceberg" -%}
        {{ return("snapshot " ~ strandline.current_snapshot(read) ~ ":" ~ local_md5(tojson(columns))) }}
    {%- endif -%}
    {%- do exceptions.warn(
        owner ~ ": it reads " ~ relation ~ ", which is not an Iceberg table: its changes go unseen, and rows that no new "
        ~ "batch touches stay as they were. Build with --full-refresh when it changes, or join it in a model that reads "
        ~ this ~ "."
    ) -%}
    {{ return(none) }}
{%- endmacro %}
