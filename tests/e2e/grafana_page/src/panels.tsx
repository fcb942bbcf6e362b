// The panel types the dashboards use, made of @grafana/ui's parts.
import { FieldType, GrafanaTheme2, PanelPlugin, PanelProps, dateTimeFormat, getFieldDisplayName, getFieldDisplayValues, identityOverrideProcessor } from '@grafana/data';
import * as runtime from '@grafana/runtime';
import { registerRuntimePanelPlugin } from '@grafana/scenes';
import * as ui from '@grafana/ui';
import React from 'react';
import { fail, report } from './report';

export interface Span {
  from: number;
  to: number;
  text: string;
}

export const page: { theme?: GrafanaTheme2; spans: Span[] } = { spans: [] };

const CUSTOM = [
  'drawStyle', 'lineWidth', 'fillOpacity', 'gradientMode', 'lineInterpolation', 'showPoints', 'spanNulls', 'axisPlacement', 'axisLabel',
  'stacking', 'thresholdsStyle', 'lineStyle', 'hideFrom', 'align', 'cellOptions', 'inspect', 'width', 'minWidth',
];

function isEmpty(props: PanelProps<any>): boolean {
  return props.data.series.every((frame) => frame.length === 0);
}

function noValue(props: PanelProps<any>): JSX.Element {
  const text = props.fieldConfig.defaults.noValue ?? 'No data';
  report.empty.push(props.title);
  return (
    <div style={{ display: 'flex', width: props.width, height: props.height, alignItems: 'center', justifyContent: 'center', opacity: 0.6 }}>
      {text}
    </div>
  );
}

function displayed(props: PanelProps<any>): any[] {
  return getFieldDisplayValues({
    fieldConfig: props.fieldConfig,
    reduceOptions: { calcs: ['lastNotNull'], values: false },
    replaceVariables: props.replaceVariables,
    theme: page.theme!,
    data: props.data.series,
    timeZone: 'utc',
    sparkline: props.options.graphMode === 'area',
  } as any);
}

function marks(config: any): void {
  config.addHook('draw', (plot: any) => {
    const context = plot.ctx as CanvasRenderingContext2D;
    context.save();
    context.strokeStyle = page.theme!.visualization.getColorByName('semi-dark-orange');
    context.setLineDash([3, 5]);
    context.lineWidth = 1;
    context.globalAlpha = 0.7;
    for (const span of page.spans) {
      const x = plot.valToPos(span.from, 'x', true);
      if (x >= plot.bbox.left && x <= plot.bbox.left + plot.bbox.width) {
        context.beginPath();
        context.moveTo(x, plot.bbox.top);
        context.lineTo(x, plot.bbox.top + plot.bbox.height);
        context.stroke();
      }
    }
    context.restore();
  });
}

class Marks extends React.Component<{ config: any }> {
  constructor(props: { config: any }) {
    super(props);
    marks(props.config);
  }
  render() {
    return null;
  }
}

function TimeSeriesPanel(props: PanelProps<any>) {
  if (isEmpty(props)) {
    return noValue(props);
  }
  const frames = props.data.series.map((frame) => ({
    ...frame,
    fields: frame.fields.map((field) => (field.type === FieldType.number ? { ...field, config: { ...field.config, custom: { axisBorderShow: false, ...field.config.custom } } } : field)),
  }));
  return (
    <ui.TimeSeries
      frames={frames as any}
      structureRev={1}
      timeRange={props.timeRange}
      timeZone="utc"
      width={props.width}
      height={props.height}
      legend={props.options.legend}
      options={props.options}
    >
      {((config: any) => <Marks config={config} />) as any}
    </ui.TimeSeries>
  );
}

function StatPanel(props: PanelProps<any>) {
  const values = isEmpty(props) ? [] : displayed(props);
  if (!values.length) {
    return noValue(props);
  }
  const wide = props.width > props.height;
  return (
    <div style={{ display: 'flex', flexDirection: wide ? 'row' : 'column' }}>
      {values.map((value, place) => (
        <ui.BigValue
          key={place}
          value={value.display}
          sparkline={value.sparkline}
          theme={page.theme as any}
          width={wide ? props.width / values.length : props.width}
          height={wide ? props.height : props.height / values.length}
          colorMode={'value' as any}
          graphMode={props.options.graphMode}
          justifyMode={'auto' as any}
          textMode={props.options.textMode}
          count={values.length}
        />
      ))}
    </div>
  );
}

function BarsPanel(props: PanelProps<any>) {
  const values = isEmpty(props) ? [] : displayed(props);
  if (!values.length) {
    return noValue(props);
  }
  const highest = Math.max(...values.map((value) => value.display.numeric), 0.01);
  const height = Math.min(38, props.height / values.length - 6);
  const longest = (pick: (display: any) => string) => values.map((value) => pick(value.display) ?? '').sort((a, b) => b.length - a.length)[0];
  const alignment: any = { title: longest((d) => d.title), text: longest((d) => d.text) };
  return (
    <div style={{ display: 'flex', flexDirection: 'column', gap: 6 }}>
      {[...values].sort((a, b) => b.display.numeric - a.display.numeric).map((value, place) => (
        <ui.BarGauge
          key={place}
          value={value.display}
          field={{ ...value.field, min: 0, max: props.fieldConfig.defaults.max ?? highest }}
          theme={page.theme as any}
          width={props.width}
          height={height}
          orientation={'horizontal' as any}
          displayMode={'gradient' as any}
          showUnfilled
          itemSpacing={8}
          lcdCellWidth={12}
          text={{ titleSize: 13, valueSize: 16 } as any}
          alignmentFactors={alignment}
        />
      ))}
    </div>
  );
}

function TablePanel(props: PanelProps<any>) {
  if (isEmpty(props)) {
    return noValue(props);
  }
  const frame = props.data.series[0];
  const order = (props.options.sortBy ?? [])[0];
  return <ui.Table data={frame} width={props.width} height={props.height} columnMinWidth={60} initialSortBy={order ? [order] : undefined} cellHeight={'sm' as any} />;
}

function StatePanel(props: PanelProps<any>) {
  if (isEmpty(props)) {
    return noValue(props);
  }
  const first = props.timeRange.from.valueOf();
  const last = props.timeRange.to.valueOf();
  const rows = props.data.series.map((frame) => ({ frame, time: frame.fields[0].values, field: frame.fields.find((field) => field.type === FieldType.number)! }));
  const labels = 20 + 7 * Math.max(...rows.map(({ frame, field }) => getFieldDisplayName(field, frame).length));
  const height = Math.min(44, (props.height - 22) / rows.length);
  const at = (time: number) => labels + ((time - first) / (last - first)) * (props.width - labels);
  const ticks = Array.from({ length: 7 }, (_, i) => first + ((last - first) * i) / 6);
  return (
    <svg width={props.width} height={props.height} fontFamily={page.theme!.typography.fontFamily} fontSize={12}>
      {rows.map(({ frame, time, field }, row) => {
        const pieces: { from: number; to: number; value: number }[] = [];
        [...time].forEach((t, i) => {
          const value = field.values[i];
          const next = time[i + 1] ?? last;
          const before = pieces[pieces.length - 1];
          if (value == null) {
            return;
          }
          if (before && before.value === value && before.to === t) {
            before.to = next;
          } else {
            pieces.push({ from: t, to: next, value });
          }
        });
        return (
          <g key={row}>
            <text x={labels - 8} y={row * height + height / 2 + 4} textAnchor="end" fill={page.theme!.colors.text.primary}>
              {getFieldDisplayName(field, frame)}
            </text>
            {pieces.map((piece, i) => {
              const shown = field.display!(piece.value);
              const width = at(piece.to) - at(piece.from);
              return (
                <g key={i}>
                  <rect x={at(piece.from)} y={row * height + 3} width={Math.max(1, width)} height={height - 6} fill={shown.color} rx={2} />
                  {width > 60 && (
                    <text x={at(piece.from) + 6} y={row * height + height / 2 + 4} fill={page.theme!.colors.getContrastText(shown.color ?? '#000')}>
                      {shown.text}
                    </text>
                  )}
                </g>
              );
            })}
          </g>
        );
      })}
      {ticks.map((time, i) => (
        <text key={i} x={at(time)} y={props.height - 4} textAnchor={i === 6 ? 'end' : i ? 'middle' : 'start'} fill={page.theme!.colors.text.secondary}>
          {dateTimeFormat(time, { format: 'HH:mm', timeZone: 'utc' })}
        </text>
      ))}
    </svg>
  );
}

function counted(Component: React.ComponentType<PanelProps<any>>): React.ComponentType<PanelProps<any>> {
  return function Counted(props: PanelProps<any>) {
    if (!report.panels.includes(props.title)) {
      report.panels.push(props.title);
    }
    for (const err of [props.data.error, ...(props.data.errors ?? [])]) {
      if (err) {
        fail(`${props.title}: ${err.message ?? JSON.stringify(err)}`);
      }
    }
    return <Component {...props} />;
  };
}

export function registerPanels(): void {
  const kinds: Record<string, React.ComponentType<PanelProps<any>>> = {
    timeseries: TimeSeriesPanel, stat: StatPanel, bargauge: BarsPanel, table: TablePanel, 'state-timeline': StatePanel,
  };
  const plugins: Record<string, any> = {};
  for (const [id, component] of Object.entries(kinds)) {
    const plugin: any = new PanelPlugin(counted(component)).useFieldConfig({
      useCustomConfig: (builder: any) => {
        for (const name of CUSTOM) {
          builder.addCustomEditor({ id: name, path: name, name, editor: () => null, override: () => null, process: identityOverrideProcessor, shouldApply: () => true });
        }
      },
    });
    plugin.meta = { id, name: id, info: { logos: {}, version: '' }, sort: 1, module: '', baseUrl: '', type: 'panel' };
    plugins[id] = plugin;
    try {
      registerRuntimePanelPlugin({ pluginId: id, plugin });
    } catch (err) {
      fail(err);
    }
  }
  (runtime as any).setPluginImportUtils({ importPanelPlugin: async (id: string) => plugins[id], getPanelPluginFromCache: (id: string) => plugins[id] });
}
