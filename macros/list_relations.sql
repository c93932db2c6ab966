{% macro spark__list_relations_without_caching(relation) -%}
    {#-
        dbt-spark lists an Iceberg namespace with a statement that fails, then one DESCRIBE per table,
        and crashes if the namespace does not exist yet. In an Iceberg catalog, SHOW TABLES is enough;
        in any other, dbt-spark's own macro is right. In a project that installs this package, dbt
        finds this macro only through an entry under `dispatch` (see docs/macros.md).
    -#}
    {%- set schema = relation.schema -%}
    {%- if "." in schema or not strandline.in_iceberg_catalog() -%}
        {{ return(dbt.spark__list_relations_without_caching(relation)) }}
    {%- endif -%}
    {#- dbt lists each schema right after the schemas. Later the project may have dropped one: it is looked for again. -#}
    {%- if not strandline.remembered("schemas").pop(schema | lower, false) -%}
        {%- set found = run_query("show schemas like " ~ strandline.text_literal(schema)) -%}
        {%- if schema | lower not in found.columns[0].values() | map("lower") | list -%}
            {{ return([]) }}
        {%- endif -%}
    {%- endif -%}
    {%- set rows = [] -%}
    {%- for row in run_query("show tables in " ~ strandline.quoted(schema)) -%}
        {%- do rows.append([schema, row[1], false, "Provider: iceberg\nType: MANAGED\n"]) -%}
    {%- endfor -%}
    {%- for row in run_query("show views in " ~ strandline.quoted(schema)) if not row[2] -%}
        {%- do rows.append([schema, row[1], false, "Type: VIEW\n"]) -%}
    {%- endfor -%}
    {{ return(rows) }}
{%- endmacro %}


{% macro spark__list_schemas(database) -%}
    {#- dbt's first statement. If the warehouse is not where Spark looks for it, it fails without saying why. -#}
    {%- set iceberg = strandline.in_iceberg_catalog() -%}
    {%- set found = dbt.spark__list_schemas(database) -%}
    {%- for name in found.columns[0].values() if iceberg -%}
        {%- do strandline.remembered("schemas").update({name | lower: true}) -%}
    {%- endfor -%}
    {{ return(found) }}
{%- endmacro %}


{% macro in_iceberg_catalog() -%}
    {#- Whether the session is in an Iceberg catalog, whose warehouse is then checked. Asked once an invocation. -#}
    {%- set known = strandline.remembered("catalog") -%}
    {%- if "iceberg" not in known -%}
        {%- set catalog = "spark.sql.catalog." ~ run_query("select current_catalog()").columns[0].values()[0] -%}
        {%- set iceberg = strandline.is_iceberg_catalog(catalog) -%}
        {%- if iceberg -%}
            {%- do strandline.check_warehouse(catalog) -%}
            {%- if run_query("set " ~ catalog ~ ".type").columns[1].values()[0] == "hadoop" -%}
                {#- Such a catalog is a folder. Until that is there, Iceberg answers with an error. -#}
                {%- do strandline.run_statement("create schema if not exists " ~ strandline.quoted_path(target.schema)) -%}
            {%- endif -%}
        {%- endif -%}
        {%- do known.update({"iceberg": iceberg}) -%}
    {%- endif -%}
    {{ return(known["iceberg"]) }}
{%- endmacro %}


{% macro is_iceberg_catalog(setting) -%}
    {#- `setting` is the catalog's, `spark.sql.catalog.<name>`. -#}
    {%- set implementation = run_query("set " ~ setting).columns[1].values()[0] -%}
    {{ return(implementation == "org.apache.iceberg.spark.SparkCatalog") }}
{%- endmacro %}


{% macro check_warehouse(setting) -%}
    {#-
        Iceberg writes a catalog's warehouse into the paths of each table's metadata. A relative path
        would mean another folder for each process that is started elsewhere. Spark hides a path that looks like
        a secret (`/srv/token-service/warehouse`): of such a one, nothing is known.
    -#}
    {%- set warehouse = run_query("set " ~ setting ~ ".warehouse").columns[1].values()[0] -%}
    {%- if modules.re.match("/|[A-Za-z][A-Za-z0-9+.-]*:|<undefined>|\\*+\\(redacted\\)$", warehouse) is none
        and run_query("set " ~ setting ~ ".type").columns[1].values()[0] in ("hadoop", "jdbc") -%}
        {{ exceptions.raise_compiler_error(
            "profiles.yml: the warehouse " ~ warehouse ~ " (" ~ setting ~ ".warehouse) is a relative path, and tables would "
            ~ "store it: only processes started in the same folder could read them. Write an absolute path or a URL. In a "
            ~ "project made by `loader init`, `loader setup` does this for you."
        ) }}
    {%- endif -%}
{%- endmacro %}
