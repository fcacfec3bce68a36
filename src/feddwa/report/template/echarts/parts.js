// What the reports use of Apache ECharts; README.md says how echarts.min.js.xz is made of it.
import * as core from "echarts/core";
import { BarChart, CustomChart, GraphChart, HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import {
  DataZoomInsideComponent, GridComponent, LegendScrollComponent, MarkLineComponent, MarkPointComponent, TitleComponent,
  TooltipComponent, VisualMapContinuousComponent,
} from "echarts/components";
import { LabelLayout } from "echarts/features";
import { CanvasRenderer } from "echarts/renderers";

core.use([
  BarChart, CustomChart, GraphChart, HeatmapChart, LineChart, ScatterChart, DataZoomInsideComponent, GridComponent,
  LegendScrollComponent, MarkLineComponent, MarkPointComponent, TitleComponent, TooltipComponent,
  VisualMapContinuousComponent, LabelLayout, CanvasRenderer,
]);
export const { init, getInstanceByDom, color, version } = core;
