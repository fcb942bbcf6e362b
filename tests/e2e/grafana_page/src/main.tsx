// ?d=DASHBOARD&theme=light|dark&from=MS&to=MS&var-NAME=VALUE: shows one of the committed dashboards as a scene.
import { ThemeContext, createTheme } from '@grafana/data';
import {
  EmbeddedScene, QueryVariable, SceneDataTransformer, SceneGridItem, SceneGridLayout, SceneGridRow, SceneQueryRunner, SceneTimeRange,
  SceneVariableSet, VariableValueSelectors, VizPanel,
} from '@grafana/scenes';
import { GlobalStyles } from '@grafana/ui';
import React from 'react';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';
import { page, registerPanels } from './panels';
import { fail, report, send, watchErrors } from './report';
import { setUp, source } from './setup';

const WIDTH = 1600;
const PROM = { uid: 'prom', type: 'prometheus' };
const asked = new URLSearchParams(window.location.search);

function variables(dash: any): any[] {
  return dash.templating.list.filter((one: any) => one.type === 'query').map((one: any) => {
    const wanted = asked.get(`var-${one.name}`);
    return new QueryVariable({
      name: one.name,
      label: one.label,
      hide: one.hide,
      query: one.query,
      datasource: PROM,
      sort: one.sort,
      refresh: one.refresh,
      isMulti: one.multi,
      includeAll: one.includeAll,
      allValue: one.allValue,
      value: wanted ?? (one.includeAll ? ['$__all'] : ''),
      text: wanted ?? (one.includeAll ? ['All'] : ''),
    });
  });
}

function viz(panel: any): VizPanel {
  const runner = new SceneQueryRunner({
    datasource: PROM,
    queries: panel.targets.map((target: any) => ({ ...target, datasource: PROM, __title: panel.title })),
  });
  return new VizPanel({
    title: panel.title,
    description: panel.description,
    pluginId: panel.type,
    options: panel.options,
    fieldConfig: panel.fieldConfig,
    $data: panel.transformations ? new SceneDataTransformer({ $data: runner, transformations: panel.transformations }) : runner,
  });
}

function cell(panel: any, top: number): SceneGridItem {
  const { x, y, w, h } = panel.gridPos;
  return new SceneGridItem({ x, y: y - top, width: w, height: h, body: viz(panel) });
}

function layout(dash: any): { children: any[]; height: number } {
  const children: any[] = [];
  let height = 0;
  for (const panel of dash.panels) {
    height = Math.max(height, panel.gridPos.y + panel.gridPos.h);
    if (panel.type === 'row') {
      const inside = (panel.panels ?? []).map((one: any) => cell(one, 0));
      children.push(new SceneGridRow({ title: panel.title, x: 0, y: panel.gridPos.y, isCollapsed: panel.collapsed, isCollapsible: true, children: inside }));
    } else {
      children.push(cell(panel, 0));
    }
  }
  return { children, height: height * 38 + 70 };
}

class Boundary extends React.Component<{ children: React.ReactNode }, { text: string }> {
  state = { text: '' };
  static getDerivedStateFromError(err: Error) {
    return { text: String(err.stack) };
  }
  componentDidCatch(err: Error) {
    fail(err);
  }
  render() {
    return this.state.text ? <pre>{this.state.text}</pre> : this.props.children;
  }
}

const SETTLE_MS = 500;
const MOST_MS = 60000;

// Drawn = every chart (sparklines aside) has ink, and nothing was asked for half a second.
async function settled(): Promise<void> {
  const deadline = Date.now() + MOST_MS;
  let asked = -1;
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    const blank = [...document.querySelectorAll<HTMLCanvasElement>('.uplot canvas')].filter((one) => one.clientHeight > 80 && !hasInk(one));
    if (report.queries.length === asked && report.panels.length && !blank.length) {
      return;
    }
    if (Date.now() > deadline) {
      fail(`not settled after ${MOST_MS} ms: ${blank.length} charts are blank`);
      return;
    }
    asked = report.queries.length;
  }
}

function hasInk(canvas: HTMLCanvasElement): boolean {
  if (!canvas.width || !canvas.height) {
    return false;
  }
  const pixels = canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 3; i < pixels.length; i += 4) {
    if (pixels[i]) {
      return true;
    }
  }
  return false;
}

async function main(): Promise<void> {
  watchErrors();
  const theme = createTheme({ colors: { mode: asked.get('theme') === 'light' ? 'light' : 'dark' } });
  page.theme = theme;
  setUp(theme);
  registerPanels();
  report.dashboard = asked.get('d') ?? 'fleet';
  const dash = await (await fetch(`./dashboards/${report.dashboard}.json`)).json();
  const start = Number(asked.get('from'));
  const end = Number(asked.get('to'));
  const run = asked.get('var-run');
  for (const annotation of dash.annotations.list) {
    page.spans.push(...(await source.spans(annotation.expr.replace('$run', run ?? '.+'), start / 1000, end / 1000)));
  }
  const { children, height } = layout(dash);
  const scene = new EmbeddedScene({
    $timeRange: new SceneTimeRange({ from: new Date(start).toISOString(), to: new Date(end).toISOString(), timeZone: 'utc' }),
    $variables: new SceneVariableSet({ variables: variables(dash) }),
    controls: [new VariableValueSelectors({})],
    body: new SceneGridLayout({ children }),
  });
  document.body.style.cssText = `margin:0;background:${theme.colors.background.canvas};color:${theme.colors.text.primary};font-family:${theme.typography.fontFamily}`;
  createRoot(document.getElementById('root')!).render(
    <Boundary>
      <MemoryRouter>
        <ThemeContext.Provider value={theme}>
          <GlobalStyles />
          <div style={{ padding: '10px 16px 0', fontSize: 20 }}>{dash.title}</div>
          <div style={{ padding: '0 16px 16px', width: WIDTH, height, boxSizing: 'border-box', display: 'flex' }}>
            <scene.Component model={scene} />
          </div>
        </ThemeContext.Provider>
      </MemoryRouter>
    </Boundary>,
  );
  settled().then(send, fail);
}

main().catch((err) => {
  fail(err);
  void send();
});
